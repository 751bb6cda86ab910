from torchcaps.nn.decoder import (
    FullyConnectedDecoder as FullyConnectedDecoder,
    mask_capsules as mask_capsules,
)
from torchcaps.nn.em import EMRouting as EMRouting
from torchcaps.nn.generator import use_generator as use_generator
from torchcaps.nn.head import CapsuleHead as CapsuleHead
from torchcaps.nn.heinsen import (
    Heinsen2019 as Heinsen2019,
    Heinsen2022 as Heinsen2022,
    RoutingHead as RoutingHead,
)
from torchcaps.nn.inverted_attention import InvertedAttention as InvertedAttention
from torchcaps.nn.layers import (
    CapsuleLinear as CapsuleLinear,
    ClassCaps as ClassCaps,
    ConvCaps as ConvCaps,
    TransposedConvCaps as TransposedConvCaps,
)
from torchcaps.nn.map_routing import MapRouting as MapRouting
from torchcaps.nn.primary import (
    LargeKernelConv2d as LargeKernelConv2d,
    MatrixPrimaryCaps as MatrixPrimaryCaps,
    PrimaryCaps as PrimaryCaps,
    flatten_space as flatten_space,
)
from torchcaps.nn.routed import (
    RoutedLayer as RoutedLayer,
    RoutedStack as RoutedStack,
    RoutingTrace as RoutingTrace,
    RoutingTraces as RoutingTraces,
    record_routing as record_routing,
)
from torchcaps.nn.routers import (
    DynamicRouting as DynamicRouting,
    FunctionRouter as FunctionRouter,
    Router as Router,
    UniformRouting as UniformRouting,
    create_router as create_router,
    list_routers as list_routers,
    register_router as register_router,
    set_impl as set_impl,
)
from torchcaps.nn.self_attention import SelfAttentionRouting as SelfAttentionRouting
from torchcaps.nn.self_routing import PoseVotes as PoseVotes, SelfRouting as SelfRouting
from torchcaps.nn.vb import VBRouting as VBRouting
from torchcaps.nn.votes import (
    FactorizedVotes as FactorizedVotes,
    LinearVotes as LinearVotes,
    MatrixVotes as MatrixVotes,
)
