// The KV cache, block by block: who holds it, what is shared, what is kept, what is free.
import { useCallback, useMemo, useState } from "preact/hooks";
import { count, percent, plural } from "../format";
import { BLOCK_NAMES, OwnerColors } from "../palette";
import { BlockMap, type Selection } from "../parts/block_map";
import { Empty, Panel } from "../parts/panel";
import type { BlockKind, KvMap, Snapshot } from "../types";

const KINDS: BlockKind[] = ["owned", "shared", "cached", "free"];

interface Props {
  snapshot: Snapshot;
  onRequest: (id: string) => void;
}

export function KvView({ snapshot, onRequest }: Props) {
  const map = snapshot.kv_map;
  const [selection, select] = useState<Selection>({ owner: null, block: null });
  const selectBlock = useCallback((block: number | null) => select({ owner: null, block }), []);
  const { byKind, byOwner } = useMemo(() => tally(map), [map]);
  const colors = useMemo(() => new OwnerColors(), []);
  colors.update(map.owners);
  if (!map.num_blocks) return <Empty>This engine has no KV-cache blocks.</Empty>;
  return (
    <div class="grid">
      <Panel title="KV-cache map" class="wide">
        <ul class="legend">
          {KINDS.map((kind) => (
            <li key={kind}>
              <span class={`block ${kind}`} aria-hidden="true" />
              {BLOCK_NAMES[kind]} <b data-kv={kind}>{count(byKind[kind])}</b>
              <span class="dim">{percent(byKind[kind] / map.num_blocks)}</span>
            </li>
          ))}
          <li class="dim">{plural(map.num_blocks, "block")}</li>
        </ul>
        <BlockMap map={map} colors={colors} selection={selection} onSelect={selectBlock} />
        <p class="told" role="status">
          {tell(map, selection, byOwner)}
        </p>
      </Panel>
      <Panel title="By owner" class="wide">
        {map.owners.length === 0 && <Empty>No request holds blocks now.</Empty>}
        <ul class="owners">
          {[...byOwner.entries()]
            .sort((a, b) => b[1] - a[1])
            .map(([owner, blocks]) => {
              const id = map.owners[owner] ?? "";
              const over = () => select({ owner, block: null });
              const out = () => select({ owner: null, block: null });
              return (
                <li key={id}>
                  <button
                    type="button"
                    class="owner"
                    onMouseEnter={over}
                    onMouseLeave={out}
                    onFocus={over}
                    onBlur={out}
                    onClick={() => onRequest(id)}
                  >
                    <span
                      class="block"
                      style={{ background: `var(${colors.of(id)})` }}
                      aria-hidden="true"
                    />
                    <code>{id}</code>
                    <span>{plural(blocks, "block")}</span>
                  </button>
                </li>
              );
            })}
        </ul>
      </Panel>
    </div>
  );
}

function tally(map: KvMap) {
  const byKind: Record<BlockKind, number> = { owned: 0, shared: 0, cached: 0, free: 0 };
  const byOwner = new Map<number, number>();
  for (const [kind, owner, blocks] of map.runs) {
    byKind[kind] += blocks;
    if (owner >= 0) byOwner.set(owner, (byOwner.get(owner) ?? 0) + blocks);
  }
  return { byKind, byOwner };
}

function tell(map: KvMap, { owner, block }: Selection, byOwner: Map<number, number>): string {
  if (owner !== null) {
    return `${map.owners[owner]} holds ${plural(byOwner.get(owner) ?? 0, "block")} of its own.`;
  }
  if (block === null) return "Point at a block, or focus the map and use the arrow keys.";
  let first = 0;
  for (const [kind, holder, blocks] of map.runs) {
    if (block < first + blocks) {
      const range = blocks === 1 ? `Block ${first}` : `Blocks ${first}–${first + blocks - 1}`;
      const whose = holder >= 0 ? `: ${map.owners[holder]}` : "";
      const what = kind === "owned" && whose ? "" : `, ${BLOCK_NAMES[kind]}`;
      return `${range}${what}${whose}`;
    }
    first += blocks;
  }
  return "";
}
