// Every block a square, in the order of their numbers; a square stands for several where there
// are more blocks than would fit.
import { useCallback, useMemo, useRef } from "preact/hooks";
import { cssColor, hatch, type OwnerColors } from "../palette";
import type { BlockKind, KvMap } from "../types";
import { Canvas } from "./canvas";

const MAX_SQUARES = 20_000;
const MAX_HEIGHT = 520;
const SIZES = [22, 18, 15, 12, 10, 8, 7, 6, 5, 4];

export interface Selection {
  owner: number | null;
  block: number | null;
}

interface Props {
  map: KvMap;
  colors: OwnerColors;
  selection: Selection;
  onSelect: (block: number | null) => void;
}

interface Square {
  kind: BlockKind;
  owner: number;
}

export function BlockMap({ map, colors, selection, onSelect }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const each = Math.ceil(map.num_blocks / MAX_SQUARES);
  const squares = useMemo(() => toSquares(map, each), [map, each]);
  const height = useCallback(
    (width: number) => layout(width, squares.length).height,
    [squares.length],
  );
  const draw = useCallback(
    (context: CanvasRenderingContext2D, width: number) => {
      const shown = map.owners.map((id) => cssColor(colors.of(id)));
      drawSquares(context, width, squares, shown, selection, each);
    },
    [squares, selection],
  );

  function pointed(event: PointerEvent): void {
    const area = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const { size, columns } = layout(area.width, squares.length);
    const column = Math.floor((event.clientX - area.left) / size);
    const at = Math.floor((event.clientY - area.top) / size) * columns + column;
    onSelect(column < columns && at < squares.length ? at * each : null);
  }

  function moved(event: KeyboardEvent): void {
    const { columns } = layout(box.current?.clientWidth ?? 0, squares.length);
    const steps: Record<string, number> = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: columns,
      ArrowUp: -columns,
    };
    const last = squares.length - 1;
    const at = selection.block === null ? null : Math.floor(selection.block / each);
    let next: number;
    if (event.key === "Home") next = 0;
    else if (event.key === "End") next = last;
    else if (event.key in steps) next = at === null ? 0 : at + (steps[event.key] ?? 0);
    else return;
    event.preventDefault();
    if (next >= 0 && next <= last) onSelect(next * each);
  }

  return (
    <>
      <div
        ref={box}
        class="block-map"
        tabIndex={0}
        role="application"
        aria-label={`Map of ${map.num_blocks} blocks; arrow keys move from block to block`}
        onPointerMove={pointed}
        onPointerDown={pointed}
        onPointerLeave={(e) => e.pointerType === "mouse" && onSelect(null)}
        onKeyDown={moved}
        onFocus={(e) => e.currentTarget.matches(":focus-visible") && onSelect(selection.block ?? 0)}
      >
        <Canvas height={height} draw={draw} />
      </div>
      {each > 1 && <p class="dim">{`A square is ${each} blocks, shown as most of them are.`}</p>}
    </>
  );
}

function layout(width: number, squares: number) {
  const fits = (size: number) => {
    const columns = Math.max(1, Math.floor(width / size));
    return Math.ceil(squares / columns) * size <= MAX_HEIGHT;
  };
  const size = SIZES.find(fits) ?? 4;
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, height: Math.ceil(squares / columns) * size };
}

function toSquares(map: KvMap, each: number): Square[] {
  const squares: Square[] = [];
  let weights = new Map<string, { square: Square; blocks: number }>();
  let filled = 0;
  const flush = () => {
    const all = [...weights.values()].sort((a, b) => b.blocks - a.blocks);
    if (all[0]) squares.push(all[0].square);
    weights = new Map();
    filled = 0;
  };
  for (const [kind, owner, blocks] of map.runs) {
    const square = { kind, owner };
    for (let left = blocks; left > 0;) {
      const taken = Math.min(left, each - filled);
      const key = `${kind} ${owner}`;
      const known = weights.get(key);
      if (known) known.blocks += taken;
      else weights.set(key, { square, blocks: taken });
      left -= taken;
      filled += taken;
      if (filled === each) flush();
    }
  }
  if (filled) flush();
  return squares;
}

function drawSquares(
  context: CanvasRenderingContext2D,
  width: number,
  squares: Square[],
  colors: string[],
  selection: Selection,
  each: number,
): void {
  const { size, columns } = layout(width, squares.length);
  const gap = size > 6 ? 2 : 1;
  const paints: Record<BlockKind, string | CanvasPattern> = {
    free: cssColor("--free"),
    cached: hatch("--idle"),
    shared: cssColor("--ink"),
    owned: cssColor("--blue"),
  };
  const background = cssColor("--panel");
  const cursor = selection.block === null ? -1 : Math.floor(selection.block / each);
  squares.forEach(({ kind, owner }, i) => {
    const x = (i % columns) * size;
    const y = Math.floor(i / columns) * size;
    const inner = size - gap;
    const mine = kind === "owned" ? colors[owner] : undefined;
    context.globalAlpha = selection.owner !== null && owner !== selection.owner ? 0.22 : 1;
    context.fillStyle = mine ?? paints[kind];
    context.fillRect(x, y, inner, inner);
    if (kind === "shared" && inner > 5) {
      context.fillStyle = background;
      context.fillRect(x + inner / 3, y + inner / 3, inner / 3, inner / 3);
    }
    if (i === cursor) {
      context.strokeStyle = cssColor("--focus");
      context.lineWidth = 2;
      context.strokeRect(x - 0.5, y - 0.5, inner + 1, inner + 1);
    }
  });
  context.globalAlpha = 1;
}
