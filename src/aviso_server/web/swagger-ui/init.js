"use strict";

// Paths are relative so that the page also works behind a proxy that adds a prefix.
// validatorUrl: null, because the default sends the description to an outside service.
SwaggerUIBundle({
  url: "../api-docs/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const paint = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", paint);
paint();
