// How numbers and times are written. Always true: an unknown value is an en dash, never 0.
export const NONE = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : whole.format(value);
}

export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return minus(whole.format(value));
  if (size < 0.001) return minus(value.toExponential(1).replace(".0e", "e"));
  return minus(String(Number(value.toPrecision(digits))));
}

/** With this many decimals, a tie rounded to the even digit as Python does: the terminal shows the same digits. */
export function fixed(value: number, digits: number): string {
  const tie = Number.isInteger(value * 2 ** (digits + 1)) && !Number.isInteger(value * 2 ** digits);
  if (!tie) return value.toFixed(digits);
  const below = Math.floor(Math.abs(value) * 10 ** digits);
  return (((below % 2 === 0 ? below : below + 1) / 10 ** digits) * Math.sign(value)).toFixed(digits);
}

export function score(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  return Math.abs(value) >= 1000 ? number(value) : minus(fixed(value, digits));
}

/** How many decimals an estimate with this interval needs. */
export function decimals(low: number | null, high: number | null): number {
  return low !== null && high !== null && high !== low && high - low < 0.02 ? 4 : 3;
}

export function signed(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return NONE;
  return value > 0 ? `+${score(value, digits)}` : score(value, digits);
}

export function share(part: number, of: number): string {
  if (!of) return NONE;
  const percent = (100 * part) / of;
  return percent > 0 && percent < 1 ? "<1%" : `${fixed(percent, 0)}%`;
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value < 0.001) return value === 0 ? "0 s" : "<1 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${fixed(value, 1)} s`;
  const minutes = Math.floor(Math.round(value) / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.round(value) % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

export function bytes(value: number): string {
  if (value < 1000) return `${value} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let size = value / 1000;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** How long ago a time was: ISO text, or seconds since 1970. */
export function ago(time: string | number | null, now = Date.now()): string {
  const at = typeof time === "number" ? time * 1000 : time ? Date.parse(time) : NaN;
  if (Number.isNaN(at)) return NONE;
  const passed = (now - at) / 1000;
  if (passed < -60) return new Date(at).toISOString().slice(0, 16).replace("T", " ");
  if (passed < 60) return "just now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  if (passed < 14 * 86_400) return `${Math.floor(passed / 86_400)} d ago`;
  return new Date(at).toISOString().slice(0, 10);
}

/** A model that is a folder is known by the end of its path. */
export function model(name: string): string {
  const parts = name.split("/");
  return name.length > 40 && parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : name;
}

export function words(name: string): string {
  return name.replaceAll("_", " ");
}

export function many(value: number, one: string, more = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : more}`;
}

function minus(text: string): string {
  return text.replace("-", "−");
}
