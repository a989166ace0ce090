// Which colours: as the system has them, or as the visitor chose. A plain script, as it
// has to run before the first paint; the rest of the page is modules.
(() => {
  const KEY = "lance-theme";
  const root = document.documentElement;

  function read() {
    try {
      const kept = localStorage.getItem(KEY);
      return kept === "light" || kept === "dark" ? kept : "auto";
    } catch {
      return "auto"; // Storage is off in this browser.
    }
  }

  function apply(theme) {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
  }

  apply(read());
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = read();
    select.addEventListener("change", () => {
      apply(select.value);
      try {
        localStorage.setItem(KEY, select.value);
      } catch {
        // It holds until the page is closed.
      }
    });
  });
})();
