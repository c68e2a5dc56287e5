// An answer from the model, token by token: chat completions, or completions for a model that has
// no chat template.
import { call } from "./api";
import { serverEvents } from "./sse";

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
  /** Data URLs; they stand before the text. */
  images: string[];
}

export interface Settings {
  model: string | null;
  system: string;
  temperature: number | null;
  top_p: number | null;
  /** Null: as many as there is room for. */
  max_tokens: number | null;
  seed: number | null;
}

export interface Alternative {
  text: string;
  logprob: number;
}

export interface Token extends Alternative {
  top: Alternative[];
  /** Not part of the text: the end of the turn. */
  unseen: boolean;
}

export interface Piece {
  text: string;
  /** What the model thinks before it answers, where the server tells it apart. */
  reasoning: string;
  tokens: Token[];
  finish: string | null;
  /** Tokens of the whole answer; told once, at its end. */
  used: number | null;
}

/** What is asked, as the server takes it. */
export interface Prompt {
  messages: Message[];
  /** Without a chat template, the messages are one text. */
  plain: boolean;
  /** Tokens of prompt and answer together. */
  context: number;
}

export interface Answer {
  /** As the engine knows it: `X-Request-Id` of the response. */
  requestId: string;
  plain: boolean;
  pieces: AsyncGenerator<Piece>;
}

const TOP = 5;
const LOGPROBS = { logprobs: true, top_logprobs: TOP };
const NOTHING: Piece = { text: "", reasoning: "", tokens: [], finish: null, used: null };

/** Answer a prompt that fits; see `fitting`. */
export async function generate(
  { messages, plain, context }: Prompt,
  settings: Settings,
  signal: AbortSignal,
): Promise<Answer> {
  const common = {
    ...(settings.model !== null && { model: settings.model }),
    max_tokens: settings.max_tokens ?? context, // the server lowers it to the room that is left
    ...(settings.temperature !== null && { temperature: settings.temperature }),
    ...(settings.top_p !== null && { top_p: settings.top_p }),
    ...(settings.seed !== null && { seed: settings.seed }),
    stream: true,
    stream_options: { include_usage: true },
  };
  const response = plain
    ? await call(
        "POST",
        "/v1/completions",
        { ...common, ...asText(messages), logprobs: TOP },
        signal,
      )
    : await call(
        "POST",
        "/v1/chat/completions",
        { ...common, messages: asSent(messages), ...LOGPROBS },
        signal,
      );
  const requestId = response.headers.get("x-request-id") ?? "";
  return { requestId, plain, pieces: pieces(response) };
}

/** The messages as the server takes them. */
export function asSent(messages: Message[]): object[] {
  return messages.map(({ role, content, images }) => ({
    role,
    content: images.length
      ? [
          ...images.map((url) => ({ type: "image_url", image_url: { url } })),
          ...(content ? [{ type: "text", text: content }] : []),
        ]
      : content,
  }));
}

/** The messages as one text, for a model without a chat template. */
export function asText(messages: Message[]): { prompt: string } {
  return { prompt: messages.map((m) => m.content).join("\n") };
}

interface Chunk {
  error?: { message: string };
  choices?: {
    text?: string;
    delta?: { content?: string; reasoning_content?: string };
    finish_reason: string | null;
    logprobs: ChatLogprobs | CompletionLogprobs | null;
  }[];
  usage?: { completion_tokens: number } | null;
}

interface ChatLogprobs {
  content: {
    token: string;
    bytes: number[] | null;
    logprob: number;
    top_logprobs: { token: string; logprob: number }[];
  }[];
}

interface CompletionLogprobs {
  tokens: string[];
  token_logprobs: (number | null)[];
  top_logprobs: (Record<string, number> | null)[];
}

async function* pieces(response: Response): AsyncGenerator<Piece> {
  const decoder = new TextDecoder();
  for await (const { data } of serverEvents(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) yield { ...NOTHING, used: chunk.usage.completion_tokens };
    for (const choice of chunk.choices ?? []) {
      const text = choice.text ?? choice.delta?.content ?? "";
      const reasoning = choice.delta?.reasoning_content ?? "";
      const found = choice.logprobs ? tokens(choice.logprobs, decoder) : [];
      const last = found.at(-1);
      if (last && choice.finish_reason === "stop" && !text.endsWith(last.text)) last.unseen = true;
      yield { ...NOTHING, text, reasoning, tokens: found, finish: choice.finish_reason };
    }
  }
}

function tokens(logprobs: ChatLogprobs | CompletionLogprobs, decoder: TextDecoder): Token[] {
  if ("content" in logprobs) {
    return logprobs.content.map(({ token, bytes, logprob, top_logprobs }) => ({
      text: whole(token, bytes, decoder),
      logprob,
      unseen: false,
      top: top_logprobs.map((t) => ({ text: t.token, logprob: t.logprob })),
    }));
  }
  return logprobs.tokens.map((text, i) => ({
    text,
    logprob: logprobs.token_logprobs[i] ?? 0,
    unseen: false,
    top: Object.entries(logprobs.top_logprobs[i] ?? {})
      .map(([alternative, logprob]) => ({ text: alternative, logprob }))
      .sort((a, b) => b.logprob - a.logprob),
  }));
}

/** The token's text; of a character in several tokens, all of it comes with the last. */
function whole(token: string, bytes: number[] | null, decoder: TextDecoder): string {
  if (!bytes || !token.includes("\ufffd")) return token;
  return decoder.decode(new Uint8Array(bytes), { stream: true });
}
