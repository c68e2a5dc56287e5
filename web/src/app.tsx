// The page: its head, its tabs, and whatever stands in the way of showing them.
import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { Chat } from "./chat";
import type { Feed, Link } from "./feed";
import { KeyDialog } from "./parts/key";
import { Empty, ErrorNote } from "./parts/panel";
import { rove } from "./parts/roving";
import { LinkStatus } from "./parts/status";
import { TraceButton } from "./parts/trace";
import type { Explanation } from "./types";
import { ExplainView } from "./views/explain";
import { KvView } from "./views/kv";
import { Overview } from "./views/overview";
import { Playground } from "./views/playground";
import { Prefixes } from "./views/prefixes";
import { RequestDialog } from "./views/request";
import { RooflineView } from "./views/roofline";
import { Timeline } from "./views/timeline";

const TABS = {
  overview: "Overview",
  timeline: "Timeline",
  kv: "KV cache",
  prefixes: "Prefixes",
  explain: "Explain",
  roofline: "Roofline",
  playground: "Playground",
};
type Tab = keyof typeof TABS;
const NAMES = Object.keys(TABS) as Tab[];

export function App({ feed }: { feed: Feed }) {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    const unsubscribe = feed.subscribe(() => redraw(0));
    feed.connect();
    return unsubscribe;
  }, [feed]);
  const [tab, setTab] = useTab();
  const { link, snapshot } = feed;
  const model = snapshot?.model;
  useEffect(() => {
    document.title = model ? `${model} · Quire` : "Quire";
  }, [model]);
  return (
    <>
      <header class="top">
        <h1>Quire</h1>
        <p class="model" title={model}>
          {snapshot && (
            <>
              <b>{snapshot.model}</b> <span class="dim">{snapshot.version}</span>
            </>
          )}
        </p>
        <LinkStatus link={link} onRetry={() => feed.connect()} />
        <TraceButton />
      </header>
      <Tabs tab={tab} onTab={setTab} />
      <main class={stale(link)}>
        <div id="view" role="tabpanel" aria-labelledby={`tab-${tab}`}>
          {snapshot && link.state === "lost" && (
            <ErrorNote>{`${link.why} Below is the last state that arrived.`}</ErrorNote>
          )}
          <View feed={feed} tab={tab} />
        </div>
      </main>
      {link.state === "key" && <KeyDialog wrong={link.wrong} onKey={() => feed.connect()} />}
    </>
  );
}

function View({ feed, tab }: { feed: Feed; tab: Tab }) {
  const [request, setRequest] = useState<string | null>(null);
  const [explanation, setExplanation] = useState<Explanation | null>(null);
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  const chat = useMemo(() => new Chat(() => redraw(0)), []);
  const { snapshot, history, link } = feed;
  if (!snapshot) return <Empty>{waiting(link)}</Empty>;
  return (
    <>
      {tab === "overview" && <Overview snapshot={snapshot} history={history} />}
      {tab === "timeline" && <Timeline snapshot={snapshot} onRequest={setRequest} />}
      {tab === "kv" && <KvView snapshot={snapshot} onRequest={setRequest} />}
      {tab === "prefixes" && <Prefixes nodes={snapshot.prefix_tree.nodes} />}
      {tab === "explain" && <ExplainView explanation={explanation} onExplained={setExplanation} />}
      {tab === "roofline" && (
        <RooflineView explanation={explanation} onExplained={setExplanation} />
      )}
      {tab === "playground" && <Playground chat={chat} onRequest={setRequest} />}
      {request && (
        <RequestDialog
          key={request}
          id={request}
          now={snapshot.now}
          onClose={() => setRequest(null)}
          onRequest={setRequest}
        />
      )}
    </>
  );
}

function Tabs({ tab, onTab }: { tab: Tab; onTab: (tab: Tab) => void }) {
  const bar = useRef<HTMLElement>(null);
  // On a phone the tabs are wider than the screen.
  useEffect(() => {
    const chosen = bar.current?.querySelector<HTMLElement>("[aria-selected=true]");
    if (bar.current && chosen) bar.current.scrollLeft = chosen.offsetLeft - 60;
  }, [tab]);
  return (
    <nav ref={bar} class="tabs">
      <div role="tablist" aria-label="Views" onKeyDown={(e) => rove(e, "[role=tab]")}>
        {NAMES.map((name) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-selected={tab === name}
            aria-controls="view"
            tabIndex={tab === name ? 0 : -1}
            onClick={() => onTab(name)}
            onFocus={() => onTab(name)}
          >
            {TABS[name]}
          </button>
        ))}
      </div>
    </nav>
  );
}

/** The tab is the address's fragment, so that a view can be linked to. */
function useTab(): [Tab, (tab: Tab) => void] {
  const named = (): Tab => NAMES.find((name) => location.hash === `#${name}`) ?? "overview";
  const [tab, setTab] = useState(named);
  useEffect(() => {
    const moved = () => setTab(named());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const go = (name: Tab) => {
    history.replaceState(null, "", `#${name}`);
    setTab(name);
  };
  return [tab, go];
}

function waiting(link: Link): string {
  if (link.state === "lost") return `No data yet. ${link.why}`;
  return link.state === "key"
    ? "This server needs an API key."
    : "Waiting for the first snapshot …";
}

/** What is shown is old while nothing new comes. */
const stale = (link: Link): string => (link.state === "live" ? "" : "stale");
