/** Numbers as people read them. Every function is pure and locale-free. */

export const MIB = 1024 * 1024;
export const GIB = 1024 * MIB;

/** 18,939,311,680 style grouping. */
export function formatInteger(value: number | bigint): string {
  return value.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** "512 B", "10.4 MiB", "17.64 GiB". */
export function formatBytes(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < MIB) return `${(bytes / 1024).toFixed(1)} KiB`;
  if (bytes < GIB) return `${(bytes / MIB).toFixed(1)} MiB`;
  return `${(bytes / GIB).toFixed(2)} GiB`;
}

export function formatMiB(bytes: number): string {
  return formatFixed(bytes / MIB, 2);
}

/** Fixed decimals with thousands grouping: 27,844.13. */
export function formatFixed(value: number, decimals: number): string {
  const [whole = "", fraction] = value.toFixed(decimals).split(".");
  return formatInteger(BigInt(whole === "-0" ? 0 : whole)) + (fraction === undefined ? "" : `.${fraction}`);
}

export function formatPercent(ratio: number, decimals = 2): string {
  return `${(ratio * 100).toFixed(decimals)}%`;
}

/** "850 ms", "12.4 s", "3 min 05 s", "2 h 10 min". */
export function formatDuration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}
