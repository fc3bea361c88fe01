/** hot: called once per output row over the whole vocabulary. The lowest index wins a tie. Four lanes hide the latency of compare. */
export function argmax(values: Float32Array, start: number, n: number): number {
  const end = start + n;
  const tail = start + (n & ~3);
  let b0 = -Infinity;
  let b1 = -Infinity;
  let b2 = -Infinity;
  let b3 = -Infinity;
  let i0 = start;
  let i1 = start + 1;
  let i2 = start + 2;
  let i3 = start + 3;
  for (let i = start; i < tail; i += 4) {
    const v0 = values[i] as number;
    const v1 = values[i + 1] as number;
    const v2 = values[i + 2] as number;
    const v3 = values[i + 3] as number;
    if (v0 > b0) {
      b0 = v0;
      i0 = i;
    }
    if (v1 > b1) {
      b1 = v1;
      i1 = i + 1;
    }
    if (v2 > b2) {
      b2 = v2;
      i2 = i + 2;
    }
    if (v3 > b3) {
      b3 = v3;
      i3 = i + 3;
    }
  }
  if (b1 > b0 || (b1 === b0 && i1 < i0)) {
    b0 = b1;
    i0 = i1;
  }
  if (b3 > b2 || (b3 === b2 && i3 < i2)) {
    b2 = b3;
    i2 = i3;
  }
  if (b2 > b0 || (b2 === b0 && i2 < i0)) {
    b0 = b2;
    i0 = i2;
  }
  for (let i = tail; i < end; i++) {
    const v = values[i] as number;
    if (v > b0) {
      b0 = v;
      i0 = i;
    }
  }
  return i0 - start;
}
