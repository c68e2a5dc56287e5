// Server-sent events out of a response's body; `EventSource` cannot send a key.

export interface ServerEvent {
  event: string;
  data: string;
}

export async function* serverEvents(response: Response): AsyncGenerator<ServerEvent> {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const parsed = parse(block);
        if (parsed) yield parsed;
      }
    }
  } finally {
    await reader.cancel();
  }
}

function parse(block: string): ServerEvent | null {
  let event = "message";
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment, or a field without a value
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (line.startsWith("event:")) event = value;
    if (line.startsWith("data:")) data.push(value);
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
