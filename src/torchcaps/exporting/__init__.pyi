from torchcaps.exporting.api import Exported as Exported, export as export
from torchcaps.exporting.formats import (
    ExportFormat as ExportFormat,
    Subject as Subject,
    register_export_format as register_export_format,
)
from torchcaps.exporting.hub import push as push
