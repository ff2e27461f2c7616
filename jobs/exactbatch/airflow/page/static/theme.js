// Light or dark, as chosen in Airflow: it keeps the choice in the storage that its pages share. Runs before anything
// is drawn, so that nothing flashes.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let choice = null;
    try {
      choice = localStorage.getItem("theme");
    } catch {
      // Storage is switched off: follow the system.
    }
    const isDark = choice === "dark" || (choice !== "light" && system.matches);
    const before = document.documentElement.className;
    document.documentElement.className = isDark ? "dark" : "light";
    if (before) dispatchEvent(new Event("themechange"));
  };
  apply();
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
})();
