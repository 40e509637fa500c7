// Light or dark: as Airflow around this page is, or as the system where there is no Airflow around it.

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function airflow() {
  try {
    return window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return null; // framed by another site
  }
}

function apply() {
  const around = airflow();
  const isDark = around && /\b(dark|light)\b/.test(around.className) ? around.classList.contains("dark") : dark.matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

apply();
dark.addEventListener("change", apply);
if (airflow()) new MutationObserver(apply).observe(airflow(), { attributes: true, attributeFilter: ["class"] });
