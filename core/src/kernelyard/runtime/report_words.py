"""Words of reports: what stands in place of a backend or of a size, and the reasons that the compiler itself gives."""

from __future__ import annotations

from collections.abc import Iterable

SYMBOL_SIZE = 64  # what every symbolic dim is taken as where work is estimated
VM = "vm"  # in place of a backend: branches, loops and calls, which the virtual machine carries out
EXTERN = "extern"  # likewise: functions that a model or its user brought along
VIEW = "view"  # likewise: ops that show the same bytes in another shape, so that nothing runs them
ON_HOST = "host"  # the code of a reason: the device has no code generator, and its host's is used
NO_MATCH, EXCLUDED = "no-match", "excluded"  # likewise: no pattern matches there, or the caller left it out
TAKEN = "taken"  # likewise: another backend, which is asked before, has it
WORDS = {
    VIEW: "ops that show the same bytes in another shape: nothing runs them",
    VM: "branches, loops and calls, carried out by the virtual machine",
    EXTERN: "functions that the model or its user brought along",
    ON_HOST: "ops that run beside the device, on the host",
    "reference": "the reference interpreter (NumPy)",
    NO_MATCH: "no pattern matches there",
    EXCLUDED: "left out by the caller",
    "generated": "the code generator is faster there",
    "cycle": "the group would need its own result",
    "leaking-intermediate": "a value inside the group is read outside",
    "contract-violation": "a backend accepted it, and failed",
}


def explain_words(words: Iterable[str]) -> list[str]:
    """Return a line for each word that is explained here; others are names of backends, and codes of their checks.

    Example:
        >>> explain_words(["dnnl", "excluded"])
        ['excluded: left out by the caller']
    """
    return [f"{word}: {WORDS[word]}" for word in words if word in WORDS]
