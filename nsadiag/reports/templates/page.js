"use strict";
// Zoom, reading and walking with the keyboard; without it the page shows the same, at one scale.
for (const figure of document.querySelectorAll(".timeline")) {
  const view = figure.querySelector(".view"), readout = figure.querySelector(".readout");
  const tools = figure.querySelector(".tools"), most = 64;
  let zoom = 1, chosen = null;
  tools.hidden = false;

  const scale = (next, at) => {
    next = Math.min(most, Math.max(1, next));
    const names = figure.querySelector(".name").offsetWidth, wide = view.scrollWidth - names;
    const x = at === undefined ? view.clientWidth / 2 : at;
    const part = (view.scrollLeft + x - names) / wide;
    zoom = next;
    figure.style.setProperty("--zoom", zoom);
    view.scrollLeft = part * (view.scrollWidth - names) - x + names;
    tools.querySelector("output").textContent = zoom === 1 ? "whole run" : zoom.toFixed(zoom < 10 ? 1 : 0) + "×";
  };
  const read = (mark) => {
    if (chosen) chosen.classList.remove("chosen");
    chosen = mark;
    if (!mark) return;
    mark.classList.add("chosen");
    const row = mark.closest(".lane");
    readout.textContent = (row ? row.dataset.name + ": " : "") + mark.querySelector("title").textContent;
  };
  const into = (mark) => {
    const box = mark.getBoundingClientRect(), frame = view.getBoundingClientRect();
    if (box.left < frame.left + 120 || box.right > frame.right) view.scrollLeft += box.left - frame.left - frame.width / 2;
    mark.closest(".lane").scrollIntoView({ block: "nearest" });
  };
  const walk = (rows, marks) => {
    const lanes = [...figure.querySelectorAll(".lane")].filter((lane) => lane.querySelector(".m"));
    if (!lanes.length) return;
    if (!chosen || !chosen.closest(".lane")) return read(lanes[0].querySelector(".m:last-of-type")), into(chosen);
    const here = chosen.closest(".lane"), all = [...here.querySelectorAll(".m")];
    let next = all[all.indexOf(chosen) + marks];
    if (rows) {
      const lane = lanes[lanes.indexOf(here) + rows], x = Number(chosen.getAttribute("x"));
      if (!lane) return;
      const far = (mark) => Math.abs(Number(mark.getAttribute("x")) - x);
      next = [...lane.querySelectorAll(".m")].reduce((a, b) => (far(b) < far(a) ? b : a));
    }
    if (next) read(next), into(next);
  };
  const keys = {
    "+": () => scale(zoom * 1.5), "=": () => scale(zoom * 1.5), "-": () => scale(zoom / 1.5), 0: () => scale(1),
    ArrowLeft: () => walk(0, -1), ArrowRight: () => walk(0, 1), ArrowUp: () => walk(-1, 0), ArrowDown: () => walk(1, 0),
  };
  view.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  view.addEventListener("pointerover", (event) => {
    const mark = event.target.closest(".m, .moment, .diverged");
    if (mark && mark.querySelector("title")) read(mark);
  });
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    scale(zoom * (event.deltaY < 0 ? 1.25 : 0.8), event.clientX - view.getBoundingClientRect().left);
  }, { passive: false });
  let from = null;
  view.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") from = event.clientX + view.scrollLeft; });
  addEventListener("pointerup", () => { from = null; });
  view.addEventListener("pointermove", (event) => { if (from !== null && zoom > 1) view.scrollLeft = from - event.clientX; });
  for (const button of tools.querySelectorAll("button")) button.addEventListener("click", () => keys[button.dataset.key]());
}
// Texts to paste elsewhere. Where there is no clipboard, as in a notebook's frame, the text is shown and chosen.
for (const bar of document.querySelectorAll(".copy")) {
  const said = bar.querySelector("output");
  bar.hidden = false;
  for (const button of bar.querySelectorAll("button")) button.addEventListener("click", async () => {
    const field = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(field.value);
      said.textContent = "copied";
    } catch {
      field.hidden = false;
      field.select();
      said.textContent = document.execCommand("copy") ? "copied" : "choose Copy in the menu";
      if (said.textContent === "copied") field.hidden = true;
    }
  });
}
// A table with a filter: rows whose text does not hold the words are hidden.
for (const field of document.querySelectorAll("input[data-filter]")) {
  field.closest(".filter").hidden = false;
  const rows = [...document.querySelectorAll(field.dataset.filter)], shown = field.closest(".filter").querySelector("output");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      count += row.hidden ? 0 : 1;
    }
    shown.textContent = words.length ? count + " of " + rows.length : "";
  });
}
