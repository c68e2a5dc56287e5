// Numbers for people: three digits that matter, and the unit.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (n: number): string => whole.format(n);

export function short(n: number): string {
  const size = Math.abs(n);
  if (size >= 1e12) return `${digits(n / 1e12)}T`;
  if (size >= 1e9) return `${digits(n / 1e9)}G`;
  if (size >= 1e6) return `${digits(n / 1e6)}M`;
  if (size >= 1e4) return `${digits(n / 1e3)}k`;
  return digits(n);
}

export function seconds(s: number | null | undefined): string {
  if (s === null || s === undefined) return "–";
  const size = Math.abs(s);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${digits(s * 1e6)} µs`;
  if (size < 1) return `${digits(s * 1e3)} ms`;
  if (size < 120) return `${digits(s)} s`;
  return `${digits(s / 60)} min`;
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.1) return "<0.1 %";
  return `${value.toFixed(value < 9.95 && value > 0 ? 1 : 0)} %`;
}

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${digits(n)} ${units[unit]}`;
}

/** "1 request", "2 requests". */
export const plural = (n: number, noun: string): string =>
  `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** A request's id without what all of them begin with. */
export const shortId = (id: string): string => id.replace(/^(chat)?cmpl-/, "");

function digits(n: number): string {
  const size = Math.abs(n);
  if (size >= 1000) return whole.format(n);
  if (size >= 100 || Number.isInteger(n)) return n.toFixed(0);
  return n.toFixed(size >= 10 ? 1 : 2);
}
