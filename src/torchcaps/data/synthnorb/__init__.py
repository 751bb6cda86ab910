"""synthNORB: rendered toys with smallNORB's categories, viewpoints, lightings and split, made from a seed."""

from torchcaps.data.synthnorb.make import render_synthnorb as render_synthnorb
from torchcaps.data.synthnorb.make import write_synthnorb as write_synthnorb
