// Calls of the server. The API key lives in this page's memory, and nowhere else.

let apiKey = "";

export function setApiKey(key: string): void {
  apiKey = key;
}

export class HttpError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The response, if it is a success; otherwise an `HttpError` with the server's own words. */
export async function call(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<Response> {
  const headers: Record<string, string> = {};
  if (apiKey) headers["Authorization"] = `Bearer ${apiKey}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    body: body === undefined ? null : JSON.stringify(body),
    signal: signal ?? null,
    cache: "no-store",
    credentials: "omit",
  });
  if (!response.ok) throw new HttpError(response.status, await reason(response));
  return response;
}

export async function callJson<T>(method: string, path: string, body?: unknown): Promise<T> {
  return (await (await call(method, path, body)).json()) as T;
}

/** What went wrong, in words to show. */
export function told(error: unknown): string {
  if (error instanceof TypeError) return "The server cannot be reached.";
  return error instanceof Error ? error.message : String(error);
}

async function reason(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { error?: { message?: string } };
    if (body.error?.message) return body.error.message;
  } catch {
    // Not JSON: the status has to do.
  }
  return `The server answered ${response.status} ${response.statusText}`.trim() + ".";
}
