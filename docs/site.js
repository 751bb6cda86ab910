// What the theme leaves unsaid for readers of screens.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll("p.caption[role=heading]")) caption.ariaLevel = 2;
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
  for (const heading of document.querySelectorAll("article th")) {
    if (heading.textContent.trim()) continue;
    const name = document.createElement("span");
    name.className = "visually-hidden";
    name.textContent = "name";
    heading.replaceChildren(name);
  }
});

// A button in each heading sorts its table: by the first number of a cell, else by its text.
document.addEventListener("DOMContentLoaded", () => {
  const numberOf = (text) => {
    const match = text.replaceAll(",", "").replace("−", "-").match(/^[^\w-]*(-?\d+(?:\.\d+)?)/);
    return match ? Number(match[1]) : null;
  };
  const textOf = (row, column) => row.cells[column]?.textContent.trim() ?? "";
  const compare = (first, second, sign) => {
    const [one, other] = [numberOf(first), numberOf(second)];
    if (one !== null && other !== null) return sign * (one - other);
    if (one !== null || other !== null) return one === null ? 1 : -1; // "-" is last both ways
    return sign * first.localeCompare(second);
  };
  for (const table of document.querySelectorAll("article table")) {
    const headings = [...(table.tHead?.rows[0].cells ?? [])];
    const body = table.tBodies[0];
    if (!body || body.rows.length < 3) continue;
    // An empty first cell means the one above: such rows stay together.
    if ([...body.rows].some((row) => !textOf(row, 0))) {
      table.parentElement.tabIndex = 0; // nothing in it takes the focus, by which it is scrolled
      continue;
    }
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.title = "Sort";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const sign = heading.ariaSort === "ascending" ? -1 : 1;
        for (const other of headings) other.ariaSort = null;
        heading.ariaSort = sign > 0 ? "ascending" : "descending";
        const rows = [...body.rows];
        rows.sort((row, next) => compare(textOf(row, column), textOf(next, column), sign));
        body.append(...rows);
      });
    });
  }
});
