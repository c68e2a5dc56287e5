// One tab stop for a group; arrow keys, Home and End move inside it.

const KEYS: Record<string, (at: number, last: number) => number> = {
  ArrowRight: (at, last) => (at === last ? 0 : at + 1),
  ArrowLeft: (at, last) => (at === 0 ? last : at - 1),
  ArrowDown: (at, last) => Math.min(at + 1, last),
  ArrowUp: (at) => Math.max(at - 1, 0),
  Home: () => 0,
  End: (_, last) => last,
};

/** For `onKeyDown` of the group: focuses the next of its elements that match `selector`. */
export function rove(event: KeyboardEvent, selector: string): void {
  const move = KEYS[event.key];
  const group = event.currentTarget as HTMLElement;
  const items = [...group.querySelectorAll<HTMLElement>(selector)];
  const at = items.indexOf(document.activeElement as HTMLElement);
  if (!move || at < 0) return;
  event.preventDefault();
  items[move(at, items.length - 1)]?.focus();
}
