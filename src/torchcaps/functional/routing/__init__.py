"""One file, one published routing algorithm: the readable reference."""

from torchcaps.functional.routing.dynamic import dynamic_routing as dynamic_routing
from torchcaps.functional.routing.em import em_routing as em_routing
from torchcaps.functional.routing.random import random_coupling as random_coupling
from torchcaps.functional.routing.random import random_routing as random_routing
from torchcaps.functional.routing.uniform import uniform_routing as uniform_routing
