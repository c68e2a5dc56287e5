// An answer whose every token can be asked what else it might have been.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { percent } from "../format";
import type { Token } from "../generate";

export function Tokens({ tokens }: { tokens: Token[] }) {
  const [at, setAt] = useState<number | null>(null);
  const token = at === null ? undefined : tokens[at];
  const answer = useRef<HTMLParagraphElement>(null);
  const popup = useRef<HTMLDivElement>(null);

  // Below its token, but inside of the answer's width.
  useLayoutEffect(() => {
    const target = at === null ? null : (answer.current?.children[at] as HTMLElement | undefined);
    if (!target || !popup.current || !answer.current) return;
    const furthest = Math.max(0, answer.current.clientWidth - popup.current.offsetWidth);
    popup.current.style.left = `${Math.min(target.offsetLeft, furthest)}px`;
    popup.current.style.top = `${target.offsetTop + target.offsetHeight + 4}px`;
  }, [at]);

  function moved(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") setAt(null);
    if (!step) return;
    event.preventDefault();
    setAt((now) => Math.min(Math.max((now ?? -step) + step, 0), tokens.length - 1));
  }

  return (
    <div class="tokens-box" onMouseLeave={() => setAt(null)}>
      <p
        ref={answer}
        class="tokens"
        tabIndex={0}
        role="group"
        aria-label="Answer; arrow keys go from token to token"
        onKeyDown={moved}
        onFocus={(e) => e.currentTarget.matches(":focus-visible") && setAt((now) => now ?? 0)}
        onBlur={() => setAt(null)}
      >
        {tokens.map((t, i) => (
          <span
            key={i}
            class={`token ${sureness(t.logprob)} ${i === at ? "at" : ""} ${t.unseen ? "unseen" : ""}`}
            onPointerEnter={() => setAt(i)}
            onPointerDown={() => setAt(i)}
          >
            {t.text}
          </span>
        ))}
      </p>
      <div ref={popup} class="alternatives" aria-live="polite">
        {token && <Alternatives token={token} />}
      </div>
    </div>
  );
}

function Alternatives({ token }: { token: Token }) {
  const among = token.top.some((t) => t.text === token.text);
  const rows = among ? token.top : [...token.top, token];
  return (
    <ol>
      {rows.map((t, i) => {
        const chance = Math.exp(t.logprob);
        return (
          <li key={i} class={t.text === token.text ? "chosen" : ""}>
            <code>{visible(t.text)}</code>
            <span class="chance">
              <span style={{ width: `${chance * 100}%` }} />
            </span>
            {percent(chance)}
          </li>
        );
      })}
    </ol>
  );
}

/** Five steps, from as good as certain to a long shot. */
function sureness(logprob: number): string {
  const chance = Math.exp(logprob);
  if (chance >= 0.9) return "p4";
  if (chance >= 0.6) return "p3";
  if (chance >= 0.3) return "p2";
  return chance >= 0.1 ? "p1" : "p0";
}

function visible(text: string): string {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(nothing)";
}
