// Light, dark, or as the system has it. Only this page's choice is remembered, and only while it is open.

const ORDER = ["auto", "light", "dark"];
const WORDS = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

/** Make a button go through the themes. */
export function themeButton(pressed) {
  let theme = "auto";
  pressed.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    document.documentElement.dataset.theme = theme;
    pressed.setAttribute("aria-label", WORDS[theme]);
    pressed.title = WORDS[theme];
    document.dispatchEvent(new Event("theme-changed"));
  });
}
