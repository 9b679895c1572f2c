"""C that is made, at the build, from what is installed: names of errors, functions that are not there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def error_names(include: Path) -> str:
    """The table of cudart/errors.c, from the runtime's header."""
    text = (include / "driver_types.h").read_text()
    body = text[text.index("cudaError\n") :]
    body = re.sub(r"/\*.*?\*/", "", body[: body.index("};")], flags=re.DOTALL)
    rows = [f'    {{{name}, "{name}"}},' for name in re.findall(r"^\s*(cuda\w+)\s*=", body, re.MULTILINE)]
    head = '#include "cudart.h"\n\nstruct error_name {\n    cudaError_t code;\n    const char *name;\n};\n'
    return "\n".join([head, "const struct error_name error_names[] = {", *rows, "    {0, 0},", "};", ""])


def wanted(extension: Path, prefix: str) -> list[str]:
    """The functions of a library that an extension module of CuPy is linked with."""
    done = subprocess.run(
        ["nm", "-D", "--undefined-only", str(extension)], check=True, capture_output=True, text=True
    )
    return sorted(set(re.findall(rf"\bU ({prefix}\w+)", done.stdout)))


def absent_cublas(extension: Path) -> str:
    """A weak function for each, so that the extension loads; it says which one is missed."""
    lines = [
        '#include "cublas.h"',
        "#include <stdio.h>",
        "",
        "static cublasStatus_t missed(const char *name)",
        "{",
    ]
    lines += [
        '    fprintf(stderr, "CUDA stand-in: %s is not there\\n", name);',
        "    return CUBLAS_STATUS_NOT_SUPPORTED;",
    ]
    lines += ["}", ""]
    for name in wanted(extension, "cublas"):
        lines.append(f'__attribute__((weak)) cublasStatus_t {name}(void) {{ return missed("{name}"); }}')
    return "\n".join([*lines, ""])
