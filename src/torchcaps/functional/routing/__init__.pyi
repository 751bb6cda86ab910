from torchcaps.functional.routing.dynamic import dynamic_routing as dynamic_routing
from torchcaps.functional.routing.em import em_routing as em_routing
from torchcaps.functional.routing.fixed import (
    random_routing as random_routing,
    uniform_routing as uniform_routing,
)
