// Browsers refuse workers whose script is a file on a disk, and the search of the site
// is one. Where the site is read from a disk the script runs in a hidden frame instead.
// The theme looks for the name IFrameWorker to find its other scripts.
(() => {
  if (location.protocol !== "file:") return;

  const load = (inside, url) =>
    new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href);
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${url} can't be loaded`));
      inside.document.body.append(script);
    });

  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) =>
        urls.reduce((done, next) => done.then(() => load(inside, next)), Promise.resolve());
      this.ready = load(inside, url);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() =>
        inside.dispatchEvent(new inside.MessageEvent("message", { data })),
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
})();
