"""torchcaps doctor."""

from __future__ import annotations

from torchcaps.cli.console import print_json


def doctor(json: bool = False) -> int:
    """Say what this machine offers: versions, device, threads, precision, and which kernels run and why.

    Example: torchcaps doctor

    Args:
        json: Print JSON.
    """
    from torchcaps import ops
    from torchcaps.training.environment import environment, package_version
    from torchcaps.training.optim import resolve_device, resolve_precision

    device = resolve_device("auto")
    facts = environment() | {"device": str(device), "precision auto": resolve_precision("auto", device)}
    facts |= {f"kernel {op}": f"{name}: {reason}" for op, (name, reason) in ops.survey(device).items()}
    for extra in ("matplotlib", "numba", "triton"):
        facts[extra] = package_version(extra)
    if json:
        print_json(facts)
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name.ljust(width)}  {value}")
    return 0
