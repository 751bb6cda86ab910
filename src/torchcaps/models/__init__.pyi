from torchcaps.models._backbones import (
    Backbone as Backbone,
    register_backbone as register_backbone,
)
from torchcaps.models._pretrained import weights_file as weights_file, weights_info as weights_info
from torchcaps.models._registry import (
    ModelInfo as ModelInfo,
    create_model as create_model,
    default_task as default_task,
    list_models as list_models,
    model_info as model_info,
    register_model as register_model,
)
from torchcaps.models.affcaps import AffCapsNet as AffCapsNet
from torchcaps.models.backbone import with_backbone as with_backbone
from torchcaps.models.canonical_capsules import (
    Aligned as Aligned,
    CanonicalCapsules as CanonicalCapsules,
)
from torchcaps.models.capsnet import CapsNet as CapsNet
from torchcaps.models.cnn import CNN as CNN, matched_cnn as matched_cnn
from torchcaps.models.deepcaps import DeepCaps as DeepCaps
from torchcaps.models.efficient_capsnet import EfficientCapsNet as EfficientCapsNet
from torchcaps.models.heinsen import ConvRouting as ConvRouting, MatrixRouting as MatrixRouting
from torchcaps.models.hvc import HVC as HVC
from torchcaps.models.inverted_attention import InvertedAttentionCaps as InvertedAttentionCaps
from torchcaps.models.matrix_caps import MatrixCaps as MatrixCaps
from torchcaps.models.resnet import ResNet as ResNet
from torchcaps.models.scae import SCAE as SCAE
from torchcaps.models.segcaps import SegCaps as SegCaps
from torchcaps.models.self_routing import SRCapsNet as SRCapsNet
from torchcaps.models.transforming_autoencoder import (
    TransformedPairs as TransformedPairs,
    TransformingAutoencoder as TransformingAutoencoder,
)
from torchcaps.models.tree_capsnet import TreeCapsNet as TreeCapsNet
from torchcaps.models.unet import UNet as UNet
from torchcaps.models.vb_caps import VBCaps as VBCaps
