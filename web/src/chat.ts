// A conversation with the model. It goes on while another view is shown.
import { told } from "./api";
import { ask } from "./context";
import { count, seconds, short } from "./format";
import type { Message, Settings, Token } from "./generate";
import { readAddress } from "./parts/attach";

export interface Turn extends Message {
  tokens: Token[];
  /** What the model thought first; it is not sent back. */
  reasoning: string;
  /** The response's `X-Request-Id`; empty for what was asked. */
  requestId: string;
  /** What there is to say of it at its end. */
  note: string;
}

export class Chat {
  turns: Turn[] = [];
  /** Turns at the beginning that the model no longer sees: the context is full. */
  forgotten = 0;
  settings: Settings = {
    model: null,
    system: "",
    temperature: null,
    top_p: null,
    max_tokens: null,
    seed: null,
  };
  draft = "";
  /** Data URLs of the draft's images. */
  images: string[] = [];
  error = "";
  running: AbortController | null = null;

  private frame = 0;

  /** @param changed called whenever there is something new to show. */
  constructor(private readonly changed: () => void) {}

  write(draft: string): void {
    this.draft = draft;
    this.changed();
  }

  get ready(): boolean {
    return this.draft.trim() !== "" || this.images.length > 0;
  }

  /** Add images to the draft. */
  async attach(files: File[]): Promise<void> {
    try {
      const found = await Promise.all(files.map(readAddress));
      this.images = [...this.images, ...found];
    } catch (error) {
      this.error = told(error);
    }
    this.changed();
  }

  detach(index: number): void {
    this.images = this.images.filter((_, i) => i !== index);
    this.changed();
  }

  sample(part: Partial<Settings>): void {
    this.settings = { ...this.settings, ...part };
    this.changed();
  }

  /** Forget everything but the settings. */
  clear(): void {
    this.stop();
    this.turns = [];
    this.forgotten = 0;
    this.error = "";
    this.changed();
  }

  stop(): void {
    this.running?.abort();
  }

  /** Send the draft, and follow the answer to its end. */
  async send(): Promise<void> {
    const text = this.draft.trim();
    if (!this.ready || this.running) return;
    const images = this.images;
    const abort = new AbortController();
    this.running = abort;
    this.turns = [...this.turns, { ...NEW_TURN, role: "user", content: text, images }];
    this.draft = this.error = "";
    this.images = [];
    this.changed();
    try {
      await this.follow(abort.signal);
    } catch (error) {
      if (!abort.signal.aborted) {
        this.error = told(error);
        this.draft ||= text; // to be tried again
        if (!this.images.length) this.images = images;
        if (this.turns.at(-1)?.role === "user") this.turns = this.turns.slice(0, -1);
      }
    }
    this.running = null;
    this.changed();
  }

  private async follow(signal: AbortSignal): Promise<void> {
    const asked = this.turns;
    const messages = asked
      .slice(this.forgotten)
      .map(({ role, content, images }) => ({ role, content, images }));
    const limit = this.settings.max_tokens ?? Infinity;
    const start = performance.now();
    const { requestId, plain, pieces, dropped } = await ask(messages, this.settings, signal);
    this.forgotten += dropped;
    let reply: Turn = { ...NEW_TURN, requestId };
    let first = 0;
    let finish: string | null = null;
    let used: number | null = null;
    const tokens: Token[] = [];
    const show = () => {
      const cleared = this.turns[0] !== asked[0];
      if (!cleared) this.turns = [...asked, reply];
    };
    try {
      for await (const piece of pieces) {
        if (!first && (piece.tokens.length || piece.reasoning)) first = performance.now();
        tokens.push(...piece.tokens);
        const { content, reasoning } = reply;
        reply = { ...reply, tokens, content: content + piece.text };
        reply.reasoning = reasoning + piece.reasoning;
        used = piece.used ?? used;
        finish = piece.finish ?? finish;
        show();
        this.changedSoon();
      }
    } finally {
      const now = performance.now();
      const made = used ?? tokens.length;
      const facts = [
        `${count(made)} tokens`,
        first ? `first after ${seconds((first - start) / 1000)}` : "",
        first && made > 1 ? `${short(((made - 1) * 1000) / (now - first))} tok/s` : "",
        finish === "length"
          ? `cut off: ${made < limit ? "the context is full" : "max tokens"}`
          : "",
        finish === null ? "stopped" : "",
        plain ? "no chat template: plain completion" : "",
      ];
      reply = { ...reply, note: `${facts.filter(Boolean).join(" · ")}.` };
      show();
    }
  }

  /** Many tokens between two frames of the screen are shown at once. */
  private changedSoon(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.changed();
    });
  }
}

const NEW_TURN: Turn = {
  role: "assistant",
  content: "",
  images: [],
  tokens: [],
  reasoning: "",
  requestId: "",
  note: "",
};
