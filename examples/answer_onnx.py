"""Classify a picture with an exported file: python examples/answer_onnx.py model.onnx photo.png"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["torchcaps"])
height, width = about["preprocess"]["img_size"]
mode = "L" if about["preprocess"]["in_chans"] == 1 else "RGB"
picture = Image.open(sys.argv[2]).convert(mode).resize((width, height), Image.Resampling.BILINEAR)
images = np.asarray(picture, np.float32).reshape(1, height, width, -1).transpose(0, 3, 1, 2) / 255
if crop := about["preprocess"].get("crop"):
    top, left = (height - crop) // 2, (width - crop) // 2
    images = images[:, :, top : top + crop, left : left + crop]
[activations] = session.run(["activations"], {"images": images})[0]
best = int(activations.argmax())
print(about["classes"][best], f"activation {activations[best]:.4f}", end="")
if about["calibration"]:
    shares = activations ** (1 / about["calibration"]["temperature"])
    print(f", probability {shares[best] / shares.sum():.4f}")
