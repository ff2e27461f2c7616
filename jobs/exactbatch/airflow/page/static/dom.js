// Build elements from text. Names and records are hostile input: nothing here parses HTML.

import { ago } from "./format.js";

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** How long ago a time was; refreshAges() keeps it true. */
export const age = (text) => el("span", { "data-ago": text }, ago(text));

export function refreshAges(node) {
  for (const time of node.querySelectorAll("[data-ago]")) time.textContent = ago(time.dataset.ago);
}

/** Replace what a node contains, unless it would be the same: focus and selections stay. */
export function fill(node, key, build) {
  const text = JSON.stringify(key);
  if (node.dataset.shown === text) return false;
  node.dataset.shown = text;
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  node.replaceChildren(...[build()].flat().filter(Boolean));
  if (focused) node.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  return true;
}

/** Keep one child for each item, in order; a child is built again only if its item has changed. */
export function keyed(parent, items, keyOf, build) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    const shown = JSON.stringify(item);
    let child = old.get(key);
    old.delete(key);
    if (!child || child.dataset.item !== shown) {
      const built = build(item);
      built.dataset.key = key;
      built.dataset.item = shown;
      if (child) {
        const focused = child.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
        if (place === child) place = built;
        child.replaceWith(built);
        if (focused) built.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
      }
      child = built;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of old.values()) child.remove();
}

let saying = null;

/** Let a screen reader say something. */
export function say(text) {
  const said = document.getElementById("said");
  clearTimeout(saying);
  said.textContent = "";
  saying = setTimeout(() => (said.textContent = text), 50);
}

/** A link to a page of Airflow. Within Airflow's frame, which may not navigate its parent, the parent follows it. */
export const airflowLink = (path, ...children) => link(new URL(`../${path}`, document.baseURI), {}, children);

/** A link to another server, in a new window. */
export const foreignLink = (url, ...children) => link(url, { target: "_blank", rel: "noopener noreferrer" }, children);

function link(href, attributes, children) {
  const follow = (event) => {
    if (window.parent === window || (event.type === "auxclick" && event.button !== 1)) return;
    try {
      const outside = window.parent.document;
      const link = outside.createElement("a");
      link.href = event.currentTarget.href;
      if (attributes.target || event.ctrlKey || event.metaKey || event.shiftKey || event.button === 1) {
        link.target = "_blank";
        link.rel = "noopener";
      }
      event.preventDefault();
      outside.body.append(link);
      link.click();
      link.remove();
    } catch {
      // A foreign parent: the link opens here.
    }
  };
  return el("a", { href, ...attributes, onclick: follow, onauxclick: follow }, ...children);
}

export const runPath = (dag, run) => `dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`;
