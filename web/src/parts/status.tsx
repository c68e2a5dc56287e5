// Whether what is shown is live.
import { useEffect, useState } from "preact/hooks";
import type { Link } from "../feed";

export function LinkStatus({ link, onRetry }: { link: Link; onRetry: () => void }) {
  return (
    <div class={`link ${link.state}`}>
      <span role="status">
        <span class="dot" aria-hidden="true" />
        {word(link)}
      </span>
      {link.state === "lost" && (
        <>
          <Countdown until={link.retryAt} />
          <button type="button" class="quiet" onClick={onRetry} title={link.why}>
            now
          </button>
        </>
      )}
    </div>
  );
}

function word(link: Link): string {
  switch (link.state) {
    case "live":
      return "live";
    case "lost":
      return "disconnected";
    case "key":
      return "key needed";
    case "connecting":
      return "connecting";
  }
}

function Countdown({ until }: { until: number }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  return <span class="dim">{`again in ${Math.max(0, Math.ceil((until - now) / 1000))} s`}</span>;
}
