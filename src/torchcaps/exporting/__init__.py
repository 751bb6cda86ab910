"""Trained models as files that other programs run: a format a file, registered by its name.

`export` writes a file and checks it before the file gets its name.
"""

from torchcaps.exporting.api import Exported as Exported, export as export
from torchcaps.exporting.formats import (
    ExportFormat as ExportFormat,
    Subject as Subject,
    register_export_format as register_export_format,
)
from torchcaps.exporting.hub import push as push
