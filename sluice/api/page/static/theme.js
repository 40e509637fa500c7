// Use the light or dark theme of the Airflow page that frames this page, or else of the system.

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function airflow() {
  try {
    return window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return null; // the frame belongs to another site
  }
}

function apply() {
  const around = airflow();
  const isDark =
    around && /\b(dark|light)\b/.test(around.className)
      ? around.classList.contains("dark")
      : dark.matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

apply();
dark.addEventListener("change", apply);
if (airflow())
  new MutationObserver(apply).observe(airflow(), { attributes: true, attributeFilter: ["class"] });
