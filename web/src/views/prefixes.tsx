// The prefix cache as a tree: runs of blocks that share a beginning, each at its token positions.
import { count, plural } from "../format";
import { Empty, Panel } from "../parts/panel";
import { rove } from "../parts/roving";
import type { PrefixNode } from "../types";

interface Row {
  node: PrefixNode;
  depth: number;
  /** Tokens before the node's first. */
  start: number;
}

export function Prefixes({ nodes }: { nodes: PrefixNode[] }) {
  const rows = arrange(nodes);
  const longest = Math.max(1, ...rows.map(({ node, start }) => start + node.tokens));
  return (
    <Panel
      title="Prefix tree"
      class="wide"
      aside={<span class="dim">{nodes.length > 0 && plural(nodes.length, "run")}</span>}
    >
      {rows.length === 0 ? (
        <Empty>
          Nothing cached yet. A prompt's full blocks appear here, and again as one run where prompts
          begin alike.
        </Empty>
      ) : (
        <>
          <ul class="legend">
            <Key name="shared" text="used by several requests now" />
            <Key name="owned" text="by one" />
            <Key name="cached" text="by none: kept until its blocks are needed" />
          </ul>
          <div class="tree-axis dim" aria-hidden="true">
            <span>token 0</span>
            <span>{count(longest)}</span>
          </div>
          <ul class="tree" role="tree" aria-label="Prefixes" onKeyDown={(e) => rove(e, ".node")}>
            {rows.map(({ node, depth, start }, i) => (
              <li
                key={node.id}
                class="node"
                role="treeitem"
                aria-level={depth + 1}
                aria-label={describe(node, start)}
                title={describe(node, start)}
                tabIndex={i === 0 ? 0 : -1}
              >
                {/* Not by the row's class: Chromium forgets such styles when it moves a row. */}
                <span
                  class={`run ${use(node)}`}
                  style={{
                    left: `${(start / longest) * 100}%`,
                    width: `${(node.tokens / longest) * 100}%`,
                  }}
                />
                <span class="run-label" style={label(start / longest)}>
                  {caption(node)}
                </span>
              </li>
            ))}
          </ul>
        </>
      )}
    </Panel>
  );
}

function Key({ name, text }: { name: string; text: string }) {
  return (
    <li>
      <span class={`block ${name}`} aria-hidden="true" />
      {text}
    </li>
  );
}

function use(node: PrefixNode): "cached" | "owned" | "shared" {
  if (node.users === 0) return "cached";
  return node.users === 1 ? "owned" : "shared";
}

function label(start: number): { left: string } {
  return { left: `min(${start * 100}%, 100% - 130px)` };
}

function caption(node: PrefixNode): string {
  const tokens = `${count(node.tokens)} tok`;
  return node.users ? `${tokens} · ${plural(node.users, "user")}` : tokens;
}

function describe(node: PrefixNode, start: number): string {
  const range = `tokens ${count(start)}–${count(start + node.tokens - 1)}`;
  return `${caption(node)}: ${range}, ${plural(node.blocks, "block")}`;
}

/** Depth first, the widest branch of each node first; what has no parent here is a root. */
function arrange(nodes: PrefixNode[]): Row[] {
  const known = new Set(nodes.map((n) => n.id));
  const children = new Map<PrefixNode["id"] | null, PrefixNode[]>();
  for (const node of nodes) {
    const parent = node.parent !== null && known.has(node.parent) ? node.parent : null;
    const siblings = children.get(parent);
    if (siblings) siblings.push(node);
    else children.set(parent, [node]);
  }
  const rows: Row[] = [];
  const walk = (parent: PrefixNode["id"] | null, depth: number, start: number) => {
    const siblings = children.get(parent) ?? [];
    for (const node of siblings.sort((a, b) => b.users - a.users || b.tokens - a.tokens)) {
      rows.push({ node, depth, start });
      walk(node.id, depth + 1, start + node.tokens);
    }
  };
  walk(null, 0, 0);
  return rows;
}
