// The stream of overviews. When it ends it is opened again, after a delay that grows;
// while the page is hidden it is closed, as a browser has few connections.

const DELAY_MS = 500;
const DELAY_MS_MAX = 10_000;

export class Stream extends EventTarget {
  /** Events: `open`, `overview` (detail is the overview), `lost` (detail is the delay). */
  constructor(path) {
    super();
    this.path = path;
    this.source = null;
    this.timer = null;
    this.delay = DELAY_MS;
    this.wanted = false;
    document.addEventListener("visibilitychange", () => this.follow());
  }

  start() {
    this.wanted = true;
    this.follow();
  }

  stop() {
    this.wanted = false;
    this.follow();
  }

  /** Try at once: the visitor asked for it. */
  retry() {
    this.close();
    this.follow();
  }

  follow() {
    const open = this.wanted && document.visibilityState === "visible";
    if (!open) this.close();
    else if (this.source === null && this.timer === null) this.open();
  }

  open() {
    const source = new EventSource(this.path);
    this.source = source;
    let isFirst = true;
    source.addEventListener("overview", (event) => {
      this.delay = DELAY_MS;
      if (isFirst) this.dispatchEvent(new Event("open"));
      isFirst = false;
      const detail = JSON.parse(event.data);
      this.dispatchEvent(new CustomEvent("overview", { detail }));
    });
    source.addEventListener("error", () => {
      // The browser's own way of trying again gives up at the first refusal.
      if (this.source === source) this.lose();
    });
  }

  lose() {
    this.close();
    const delay = this.delay;
    this.delay = Math.min(this.delay * 2, DELAY_MS_MAX);
    this.timer = setTimeout(() => {
      this.timer = null;
      this.follow();
    }, delay);
    this.dispatchEvent(new CustomEvent("lost", { detail: delay }));
  }

  close() {
    clearTimeout(this.timer);
    this.timer = null;
    this.source?.close();
    this.source = null;
  }
}
