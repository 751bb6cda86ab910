"""Layers with parameters. `forward` checks, calls `ops` or `functional`, and returns Capsules.

A router of this package is one file: it registers itself, and no import names it here.
"""

from torchcaps.nn.decoder import FullyConnectedDecoder as FullyConnectedDecoder
from torchcaps.nn.decoder import mask_capsules as mask_capsules
from torchcaps.nn.em import EMRouting as EMRouting
from torchcaps.nn.heinsen import Heinsen2019 as Heinsen2019
from torchcaps.nn.heinsen import Heinsen2022 as Heinsen2022
from torchcaps.nn.heinsen import RoutingHead as RoutingHead
from torchcaps.nn.inverted_attention import InvertedAttention as InvertedAttention
from torchcaps.nn.layers import CapsuleLinear as CapsuleLinear
from torchcaps.nn.layers import ClassCaps as ClassCaps
from torchcaps.nn.layers import ConvCaps as ConvCaps
from torchcaps.nn.layers import TransposedConvCaps as TransposedConvCaps
from torchcaps.nn.map_routing import MapRouting as MapRouting
from torchcaps.nn.primary import LargeKernelConv2d as LargeKernelConv2d
from torchcaps.nn.primary import MatrixPrimaryCaps as MatrixPrimaryCaps
from torchcaps.nn.primary import PrimaryCaps as PrimaryCaps
from torchcaps.nn.primary import flatten_space as flatten_space
from torchcaps.nn.random import use_generator as use_generator
from torchcaps.nn.routed import RoutedLayer as RoutedLayer
from torchcaps.nn.routed import RoutedStack as RoutedStack
from torchcaps.nn.routed import RoutingTrace as RoutingTrace
from torchcaps.nn.routed import RoutingTraces as RoutingTraces
from torchcaps.nn.routed import record_routing as record_routing
from torchcaps.nn.routers import DynamicRouting as DynamicRouting
from torchcaps.nn.routers import FunctionRouter as FunctionRouter
from torchcaps.nn.routers import Router as Router
from torchcaps.nn.routers import UniformRouting as UniformRouting
from torchcaps.nn.routers import create_router as create_router
from torchcaps.nn.routers import list_routers as list_routers
from torchcaps.nn.routers import register_router as register_router
from torchcaps.nn.routers import set_impl as set_impl
from torchcaps.nn.self_attention import SelfAttentionRouting as SelfAttentionRouting
from torchcaps.nn.self_routing import PoseVotes as PoseVotes
from torchcaps.nn.self_routing import SelfRouting as SelfRouting
from torchcaps.nn.vb import VBRouting as VBRouting
from torchcaps.nn.votes import FactorizedVotes as FactorizedVotes
from torchcaps.nn.votes import LinearVotes as LinearVotes
from torchcaps.nn.votes import MatrixVotes as MatrixVotes
from torchcaps.registry import import_submodules

import_submodules(__name__)
