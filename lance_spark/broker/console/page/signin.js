// The form for a token. The token goes to the broker once and is kept nowhere.

import { change } from "./api.js";
import { el } from "./dom.js";
import { clearMessages, showError } from "./message.js";

export class SignInView {
  constructor(app) {
    this.app = app;
    this.key = "sign-in";
    this.token = el("input", {
      id: "token",
      type: "password",
      autocomplete: "current-password",
      required: true,
      spellcheck: "false",
    });
    this.button = el("button", { type: "submit", class: "primary", text: "Sign in" });
    this.node = el(
      "section",
      { class: "sign-in panel" },
      el("h1", { text: "Sign in" }),
      el("p", { text: "This broker asks for a token, the same one that its clients use." }),
      el(
        "form",
        { onsubmit: (event) => this.submit(event) },
        el("label", { for: "token", text: "Token" }),
        this.token,
        this.button,
      ),
      el("p", { class: "muted", text: "The token is sent to the broker and not kept by this page." }),
    );
  }

  enter() {
    this.token.focus();
  }

  take() {}

  async submit(event) {
    event.preventDefault();
    this.button.disabled = true;
    try {
      const session = await change("POST", "/api/session", { token: this.token.value });
      clearMessages();
      this.app.setSession(session);
    } catch (error) {
      showError(error);
      this.token.value = "";
      this.token.focus();
    } finally {
      this.button.disabled = false;
    }
  }
}
