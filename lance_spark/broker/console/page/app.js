// The page's frame: which view is shown, who is signed in, and the stream of overviews
// that all views live on.

import { change, get } from "./api.js";
import { ClientsView } from "./clients.js";
import { ConsumersView } from "./consumers.js";
import { el, setAttribute, setText } from "./dom.js";
import { HealthView } from "./health.js";
import { showKeys, watchKeys } from "./keyboard.js";
import { clearMessages, showDone, showError } from "./message.js";
import { OverviewView } from "./overview.js";
import { SignInView } from "./signin.js";
import { PartitionsView } from "./partitions.js";
import { StagesView } from "./stages.js";
import { Stream } from "./stream.js";
import { TopicView } from "./topic.js";

const WORDS = { ok: "Healthy", warning: "Warning", error: "Trouble" };
const MARKS = { ok: "✓", warning: "!", error: "✕" };

class App {
  constructor() {
    this.main = document.getElementById("main");
    this.banner = document.getElementById("lost");
    this.session = null;
    this.overview = null;
    this.view = null;
    this.wasOpen = false;
    this.stream = new Stream("/api/events");
    this.stream.addEventListener("overview", (event) => this.take(event.detail));
    this.stream.addEventListener("open", () => this.found());
    this.stream.addEventListener("lost", (event) => this.lose(event.detail));
  }

  get isAdmin() {
    return Boolean(this.session?.admin);
  }

  async start() {
    window.addEventListener("hashchange", () => this.route());
    document.getElementById("skip").addEventListener("click", (event) => {
      // The fragment is the view's address, so that it can't be the link's work.
      event.preventDefault();
      this.main.focus();
    });
    document.getElementById("sign-out").addEventListener("click", () => this.signOut());
    document.getElementById("help").addEventListener("click", showKeys);
    watchKeys(() => this.view);
    await this.identify();
  }

  /** Learn whether the visitor is signed in, and show the page; wait for a broker that is away. */
  async identify() {
    try {
      this.setSession(await get("/api/session"));
    } catch (error) {
      if (error.status !== 0) {
        showError(error);
        return;
      }
      this.stream.start(); // Its way of trying again serves here too.
    }
  }

  setSession(session) {
    this.session = session;
    setText(document.getElementById("address"), session.address);
    setText(document.getElementById("version"), `v${session.version}`);
    const isIn = session.signed_in || !session.needs_token;
    document.getElementById("nav").hidden = !isIn;
    document.getElementById("sign-out").hidden = !(session.needs_token && isIn);
    document.getElementById("badge").hidden = !(isIn && this.overview);
    if (!isIn) {
      this.overview = null;
      this.stream.stop();
      this.banner.hidden = true;
      this.show(new SignInView(this), "Sign in");
      return;
    }
    this.route();
    this.stream.start();
  }

  /** Show an error; if the visitor is signed out, show the form. */
  async fail(error) {
    if (!error.isSignedOut) {
      showError(error);
      return;
    }
    if (this.view instanceof SignInView) return;
    try {
      this.setSession(await get("/api/session"));
    } catch (other) {
      showError(other);
    }
  }

  async signOut() {
    try {
      await change("DELETE", "/api/session");
      clearMessages();
      this.setSession(await get("/api/session"));
    } catch (error) {
      showError(error);
    }
  }

  // Views.

  route() {
    if (!this.session) return;
    if (this.session.needs_token && !this.session.signed_in) return;
    const [path, query = ""] = location.hash.replace(/^#/, "").split("?", 2);
    const parts = path.split("/").filter(Boolean);
    const parameters = new URLSearchParams(query);
    const [name, ...rest] = parts.length ? parts : ["overview"];
    const topic = decode(rest.join("/"));
    if (name === "topics") this.routeTopic(topic, parameters);
    else if (name === "partitions") this.enter(`partitions ${topic}`, () => new PartitionsView(this, topic), topic);
    else if (name === "consumers") this.enter("consumers", () => new ConsumersView(this), "Consumers");
    else if (name === "clients") this.enter("clients", () => new ClientsView(this), "Clients");
    else if (name === "stages") this.enter("stages", () => new StagesView(this), "Stages");
    else if (name === "health") this.enter("health", () => new HealthView(this), "Health");
    else this.enter("overview", () => new OverviewView(this), "Overview");
  }

  routeTopic(name, parameters) {
    this.enter(`topic ${name}`, () => new TopicView(this, name), name || "default topic");
    this.view.navigate(parameters);
  }

  enter(key, make, title) {
    if (this.view?.key === key) return;
    const isFirst = this.view === null || this.view instanceof SignInView;
    const view = make();
    view.key = key;
    this.show(view, title);
    if (this.overview) view.take(this.overview);
    // A visitor who followed a link starts at the new view's beginning.
    if (!isFirst) this.main.focus({ preventScroll: true });
  }

  show(view, title) {
    this.view?.leave?.();
    this.view = view;
    this.main.replaceChildren(view.node);
    window.scrollTo(0, 0);
    document.title = `${title} · LANCE console`;
    for (const link of document.querySelectorAll("#nav a")) {
      const current = link.dataset.view === (view.section ?? view.key) ? "page" : null;
      setAttribute(link, "aria-current", current);
    }
    view.enter?.();
  }

  // The stream.

  take(overview) {
    // The broker notes rates once a second, whether or not an overview goes out for it.
    const isLate = this.overview !== null && overview.tick > this.overview.tick + 1;
    this.overview = overview;
    const { status } = overview.health;
    const badge = document.getElementById("badge");
    badge.hidden = false;
    setAttribute(badge, "class", `badge ${status}`);
    setAttribute(badge, "aria-label", `Health: ${WORDS[status]}`);
    setText(badge, `${MARKS[status]} ${WORDS[status]}`);
    this.view?.take?.(overview);
    if (isLate) this.view?.catchUp?.();
  }

  found() {
    if (this.session === null) this.identify();
    if (!this.banner.hidden) showDone("The broker is back.");
    this.banner.hidden = true;
    // What a view asked for when it was made is old by now, except the first time.
    if (this.wasOpen) this.view?.reload?.();
    this.wasOpen = true;
  }

  async lose(delay) {
    const seconds = Math.max(1, Math.round(delay / 1000));
    const retry = el("button", { type: "button", text: "Try now", onclick: () => this.stream.retry() });
    const text = `Connection lost, trying again in ${seconds} s. What is shown may be old.`;
    if (this.banner.hidden) this.banner.replaceChildren(el("span", { text }), retry);
    else setText(this.banner.firstChild, text);
    this.banner.hidden = false;
    try {
      // The broker may be there and have forgotten us.
      const session = await get("/api/session");
      if (session.needs_token && !session.signed_in) this.setSession(session);
      else if (this.session === null) this.setSession(session);
    } catch (error) {
      if (error.status !== 0) showError(error);
    }
  }
}

function decode(encoded) {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return encoded; // Typed by hand; the broker says that there is no such topic.
  }
}

new App().start();
