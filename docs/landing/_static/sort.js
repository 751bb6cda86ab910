// A click on a heading sorts its table: by number where a cell begins with one, else by text.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    const body = table.tBodies[0];
    if (!table.tHead || !body || body.rows.length < 3) continue;
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const sign = heading.ariaSort === "ascending" ? -1 : 1;
        for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
        heading.ariaSort = sign > 0 ? "ascending" : "descending";
        const key = (row) => row.cells[column].textContent.trim();
        const number = (text) => parseFloat(text.replace(/,/g, ""));
        body.append(...[...body.rows].sort((first, second) => {
          const difference = number(key(first)) - number(key(second));
          return sign * (difference || key(first).localeCompare(key(second)));
        }));
      });
    });
  }
});
