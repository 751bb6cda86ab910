"""Layers with parameters. `forward` checks, calls `ops` or `functional`, and returns Capsules."""

from torchcaps.nn.conv_caps import ClassCaps as ClassCaps
from torchcaps.nn.conv_caps import ConvCaps as ConvCaps
from torchcaps.nn.conv_caps import MatrixPrimaryCaps as MatrixPrimaryCaps
from torchcaps.nn.decoder import FullyConnectedDecoder as FullyConnectedDecoder
from torchcaps.nn.decoder import mask_capsules as mask_capsules
from torchcaps.nn.em import EMRouting as EMRouting
from torchcaps.nn.implementation import set_impl as set_impl
from torchcaps.nn.linear import CapsuleLinear as CapsuleLinear
from torchcaps.nn.primary import LargeKernelConv2d as LargeKernelConv2d
from torchcaps.nn.primary import PrimaryCaps as PrimaryCaps
from torchcaps.nn.primary import flatten_space as flatten_space
from torchcaps.nn.random import drawn_from as drawn_from
from torchcaps.nn.recording import Recorded as Recorded
from torchcaps.nn.recording import RoutedLayer as RoutedLayer
from torchcaps.nn.recording import RoutingRecord as RoutingRecord
from torchcaps.nn.recording import record_routing as record_routing
from torchcaps.nn.routers import DynamicRouting as DynamicRouting
from torchcaps.nn.routers import FunctionRouter as FunctionRouter
from torchcaps.nn.routers import Router as Router
from torchcaps.nn.routers import UniformRouting as UniformRouting
from torchcaps.nn.routers import create_router as create_router
from torchcaps.nn.routers import list_routers as list_routers
from torchcaps.nn.routers import register_router as register_router
