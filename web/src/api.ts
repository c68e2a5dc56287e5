// Calls of the server. The API key lives in this page's memory, and nowhere else.

let apiKey = "";

export function setApiKey(key: string): void {
  apiKey = key;
}

export class HttpError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null,
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
  if (!response.ok) throw await failure(response);
  return response;
}

export async function callJson<T>(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<T> {
  return (await (await call(method, path, body, signal)).json()) as T;
}

/** What went wrong, in words to show. */
export function told(error: unknown): string {
  if (error instanceof TypeError) return "The server cannot be reached.";
  return error instanceof Error ? error.message : String(error);
}

async function failure(response: Response): Promise<HttpError> {
  const { status, statusText } = response;
  try {
    type Body = { error?: { message?: string; code?: string | null } };
    const { error } = (await response.json()) as Body;
    if (error?.message) return new HttpError(status, error.message, error.code ?? null);
  } catch {
    // Not JSON: the status has to do.
  }
  return new HttpError(status, `The server answered ${status} ${statusText}`.trim() + ".", null);
}
