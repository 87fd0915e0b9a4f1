// Measures the reports that are shown in the frames of this page, and leaves what it found as JSON.
"use strict";

// Pixels by which texts may touch: boxes of text are a little taller and wider than its ink.
const SLACK = 2;

function overlap(a, b) {
  const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  return width > SLACK && height > SLACK;
}

function misplaced(svg) {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
  const out = texts
    .filter(([, box]) => box.left < frame.left - SLACK || box.right > frame.right + SLACK
      || box.top < frame.top - SLACK || box.bottom > frame.bottom + SLACK)
    .map(([text]) => `${text.textContent} is cut off`);
  texts.forEach(([text, box], at) => {
    texts.slice(at + 1).filter(([, other]) => overlap(box, other)).forEach(([other]) => {
      out.push(`${text.textContent} on ${other.textContent}`);
    });
  });
  return out;
}

function chart(svg) {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll(".bar, .dot, .curve")].filter((mark) => {
    const { width, height } = mark.getBoundingClientRect();
    return width > 0 && height > 0;
  });
  return {
    title: svg.querySelector("title").textContent,
    description: svg.querySelector("desc").textContent,
    left: box.left,
    right: box.right,
    height: box.height,
    marks: marks.length,
    text_height: svg.querySelector("text").getBoundingClientRect().height,
    misplaced: misplaced(svg),
  };
}

function suspects(page) {
  const found = [];
  for (const element of page.querySelectorAll("*")) {
    for (const { name, value } of element.attributes) {
      const leads_away = name === "href" && !value.startsWith("#");
      if (name === "src" || name.startsWith("on") || leads_away) {
        found.push(`${element.tagName} ${name}=${value}`);
      }
    }
    if (["IMG", "IFRAME", "OBJECT", "LINK", "FORM"].includes(element.tagName)) {
      found.push(element.tagName);
    }
  }
  return found;
}

function measure(frame) {
  const page = frame.contentDocument;
  const links = [...page.querySelectorAll("a[href^='#']")].map((link) => link.getAttribute("href"));
  return {
    width: frame.clientWidth,
    content_width: page.documentElement.scrollWidth,
    background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
    scripts: page.scripts.length,
    resources: frame.contentWindow.performance.getEntriesByType("resource").length,
    suspects: suspects(page),
    charts: [...page.querySelectorAll("svg[role=img]")].map(chart),
    dead_links: links.filter((link) => !page.getElementById(link.slice(1))),
  };
}

window.addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")].map(measure);
  document.getElementById("found").textContent = JSON.stringify(frames);
});
