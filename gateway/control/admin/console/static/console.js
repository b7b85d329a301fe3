// What pages do beyond htmx's polling: it stops while nobody looks, or on demand (WCAG 2.2.2), and says when the gateway
// doesn't answer. Without this script every page still works, as it was when it was loaded.
(() => {
  "use strict";
  const live = document.getElementById("live");
  const pulse = document.getElementById("pulse");
  const pause = document.getElementById("pause");
  let paused = false;

  document.querySelector("nav.pages [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  if (!pulse || !pause) {
    return;
  }

  const say = (text, state) => {
    if (pulse.textContent !== text) {
      pulse.textContent = text;  // only when it changes: screen readers read it out
    }
    pulse.dataset.state = state;
  };
  const isSelecting = () => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    say(paused ? "Paused" : "Live", paused ? "paused" : "live");
  });
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target === live && (paused || document.hidden || isSelecting())) {
      event.preventDefault();
    }
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (event.target !== live || paused) {
      return;
    }
    if (event.detail.successful) {
      say("Live", "live");
    } else {
      say(event.detail.xhr?.status ? "Not updated: reload the page" : "The gateway does not answer", "lost");
    }
  });
})();
