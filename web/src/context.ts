// Which messages of a long conversation are sent: the oldest are dropped, as few as possible.
import { HttpError, callJson } from "./api";
import { asSent, asText, generate, type Answer, type Message, type Settings } from "./generate";

/** Tokens that are left to the answer, at most. */
const MAX_RESERVE = 256;

interface Counted {
  count: number;
  max_model_len: number;
}

export interface Asked extends Answer {
  /** How many of the oldest messages were left out. */
  dropped: number;
}

/** Ask for an answer to the last message, with as many of those before it as fit. */
export async function ask(
  messages: Message[],
  settings: Settings,
  signal: AbortSignal,
): Promise<Asked> {
  const { system, max_tokens } = settings;
  const opening: Message[] = system ? [{ role: "system", content: system, images: [] }] : [];
  let plain = false;
  for (let dropped = 0; ;) {
    const next = messages.findIndex((m, i) => i > dropped && m.role === "user");
    const sent = [...opening, ...messages.slice(dropped)];
    try {
      const text = plain ? asText(sent) : { messages: asSent(sent) };
      const counted = await callJson<Counted>("POST", "/tokenize", text, signal);
      const { count, max_model_len: context } = counted;
      if (next < 0 || count <= room(context, max_tokens)) {
        return {
          dropped,
          ...(await generate({ messages: sent, plain, context }, settings, signal)),
        };
      }
    } catch (error) {
      if (!(error instanceof HttpError)) throw error;
      const pictured = sent.some((m) => m.images.length > 0);
      if (!plain && !pictured && /no chat template/i.test(error.message)) {
        plain = true;
        continue;
      }
      if (next < 0 || error.code !== "context_length_exceeded") throw error;
    }
    dropped = next;
  }
}

/** How many tokens a prompt may have, so that an answer has a chance. */
function room(context: number, maxTokens: number | null): number {
  const reserve = Math.min(maxTokens ?? MAX_RESERVE, MAX_RESERVE, Math.floor(context / 4));
  return Math.max(1, context - reserve);
}
