"""What libcuda.so.1 needs of NVIDIA's headers, written as C when the stand-in is built (never kept).

* A weak function for every entry point of cuda.h: what is not there answers CUDA_ERROR_NOT_SUPPORTED.
* The variants for the per-thread default stream (`_ptds`, `_ptsz`), which call the one without that ending.
* The table of cuGetProcAddress, from cudaTypedefs.h: from which version on a name means which entry point.
* Names and texts of errors.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

# cuda.h then declares each entry point by the name that it has in the library.
MACRO = "__CUDA_API_VERSION_INTERNAL"
ODD_NAMES = {("cuGraphInstantiate", 12000): "cuGraphInstantiateWithFlags"}


def prototypes(include: Path) -> dict[str, str]:
    """All entry points that cuda.h declares, and their parameters as written."""
    command = ["gcc", "-E", "-P", f"-D{MACRO}", str(include / "cuda.h")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\s*CUresult\s+(cu\w+)\s*\(([^;]*)\)\s*;", text, re.MULTILINE)
    return {name: " ".join(parameters.split()) for name, parameters in found}


def argument_names(parameters: str) -> list[str]:
    if parameters in ("", "void"):
        return []
    return [re.sub(r"\[.*\]", "", part).split()[-1].lstrip("*") for part in parameters.split(",")]


def weak(name: str, parameters: str) -> str:
    unused = "".join(f" (void){argument};" for argument in argument_names(parameters))
    return f'WEAK CUresult {name}({parameters}) {{{unused} return unsupported("{name}"); }}'


def per_thread(name: str, base: str, parameters: str) -> str:
    arguments = ", ".join(argument_names(parameters))
    return (
        f"WEAK CUresult {name}({parameters}) {{ bool before = null_is_per_thread; null_is_per_thread = true; "
        f"CUresult result = {base}({arguments}); null_is_per_thread = before; return result; }}"
    )


def functions(known: dict[str, str]) -> list[str]:
    lines = []
    for name, parameters in known.items():
        base = re.sub(r"_pt[sd][sz]$", "", name)
        lines.append(weak(name, parameters) if base == name else per_thread(name, base, parameters))
    return lines


def versions(include: Path, known: dict[str, str]) -> list[str]:
    """Rows of cuGetProcAddress: the k-th version of a name is the function that ends in _vk."""
    text = (include / "cudaTypedefs.h").read_text()
    by_name: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name, version, ending in re.findall(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)", text):
        by_name[name, ending].add(int(version))
    for name, version in ODD_NAMES:
        by_name[name, ""].add(version)
    rows = []
    for (name, ending), found in sorted(by_name.items()):
        for place, version in enumerate(sorted(found), 1):
            symbol = name + (f"_v{place}" if place > 1 else "") + ending
            symbol = ODD_NAMES.get((name, version), symbol)
            if symbol in known:
                rows.append(f'    {{"{name}", {version}, {int(bool(ending))}, (void *){symbol}}},')
    return rows


def errors(include: Path) -> list[str]:
    text = (include / "cuda.h").read_text()
    body = text[text.index("typedef enum cudaError_enum") : text.index("} CUresult;")]
    rows = []
    for name in re.findall(r"^\s*(CUDA_\w+)\s*=", body, re.MULTILINE):
        words = (
            "no error"
            if name == "CUDA_SUCCESS"
            else name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()
        )
        rows.append(f'    {{{name}, "{name}", "{words}"}},')
    return rows


def generate(include: Path) -> str:
    """The text of the generated C file."""
    known = prototypes(include)
    return "\n".join(
        [
            "/* Generated from the headers by generate.py. */",
            '#include "standin.h"',
            '#include "tables.h"',
            "#define WEAK __attribute__((weak))",
            *functions(known),
            "const struct version versions[] = {",
            *versions(include, known),
            "    {0, 0, 0, 0},",
            "};",
            "const struct error errors[] = {",
            *errors(include),
            "    {0, 0, 0},",
            "};",
            "",
        ]
    )
