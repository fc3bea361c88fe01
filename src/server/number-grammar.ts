/** Integers of a range as GBNF: digit by digit, as one writes them down. */

/** Decimal integers from min to max; either side may be open. Numbers of up to 16 digits. */
export function integerRange(min: number | undefined, max: number | undefined): string {
  if (min !== undefined && max !== undefined && min > max) throw new RangeError(`no integer from ${min} to ${max}`);
  const branches: string[] = [];
  const low = min ?? -Infinity;
  const high = max ?? Infinity;
  if (low < 0) branches.push(`"-" (${naturals(Math.max(1, -high), -low)})`);
  if (high >= 0) branches.push(naturals(Math.max(0, low), high));
  return branches.join(" | ");
}

const MOST_DIGITS = 16;

/** Non-negative integers from low to high (Infinity: as long as may be written). */
function naturals(low: number, high: number): string {
  if (high === Infinity) {
    if (low === 0) return "natural";
    const nDigits = String(low).length;
    const longer = nDigits < MOST_DIGITS ? ` | [1-9] [0-9]{${nDigits},${MOST_DIGITS - 1}}` : "";
    return `${sameLength(String(low), "9".repeat(nDigits))}${longer}`;
  }
  const branches: string[] = [];
  for (let nDigits = String(low).length; nDigits <= String(high).length; nDigits++) {
    const from = nDigits === String(low).length ? String(low) : `1${"0".repeat(nDigits - 1)}`;
    const to = nDigits === String(high).length ? String(high) : "9".repeat(nDigits);
    branches.push(sameLength(from, to));
  }
  return branches.join(" | ");
}

/** Numbers of one length from `from` to `to`, both given as digits. */
function sameLength(from: string, to: string): string {
  if (from === to) return `"${from}"`;
  const first = Number(from[0]);
  const last = Number(to[0]);
  const nRest = from.length - 1;
  if (nRest === 0) return digit(first, last);
  if (first === last) return `"${first}" (${sameLength(from.slice(1), to.slice(1))})`;
  const lowest = "0".repeat(nRest);
  const highest = "9".repeat(nRest);
  const branches: string[] = [];
  let wholeFrom = first;
  let wholeTo = last;
  if (from.slice(1) !== lowest) {
    branches.push(`"${first}" (${sameLength(from.slice(1), highest)})`);
    wholeFrom++;
  }
  if (to.slice(1) !== highest) wholeTo--;
  if (wholeFrom <= wholeTo) branches.push(`${digit(wholeFrom, wholeTo)} ${nRest === 1 ? "[0-9]" : `[0-9]{${nRest}}`}`);
  if (to.slice(1) !== highest) branches.push(`"${last}" (${sameLength(lowest, to.slice(1))})`);
  return branches.join(" | ");
}

function digit(from: number, to: number): string {
  return from === to ? `"${from}"` : `[${from}-${to}]`;
}
