"""README.md for the package's page: its links, which are relative here, lead to the repository.

The build asks for this (`tool.hatch.metadata.hooks.custom` in pyproject.toml). The repository is
that of `[project.urls]`, and the revision is the tag of the version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The target of a link, of Markdown or of HTML, that is neither absolute nor an anchor.
RELATIVE_LINK = re.compile(r"""(\]\(|\b(?:src|srcset|href)=["'])(?!\w+:|//|#)([^)\s"']+)""")
PICTURES = (".png", ".svg", ".jpg", ".gif", ".webp")


def absolute_links(text: str, repository: str, revision: str) -> str:
    """The text with every relative link as one into the repository.

    Args:
        text: Markdown, with links relative to the repository's root.
        repository: its address, such as `https://github.com/OWNER/NAME`.
        revision: a tag, a branch or a commit.
    """

    def absolute(match: re.Match[str]) -> str:
        before, target = match.groups()
        file = target.partition("#")[0]
        # A page shows a picture only in its raw form.
        view = "raw" if file.endswith(PICTURES) else "blob"
        return f"{before}{repository}/{view}/{revision}/{target}"

    return RELATIVE_LINK.sub(absolute, text)


class ReadmeHook(MetadataHookInterface):
    """Puts README.md with absolute links into the metadata of a wheel or an sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the field `readme`."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"]
        links = absolute_links(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": links}
