"""Fast paths behind the signatures of `torchcaps.functional`. Only `torchcaps.ops` imports this room."""
