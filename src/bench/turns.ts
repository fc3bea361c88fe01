/**
 * Lets only so many requests begin in one turn of the event loop. Opening a connection costs a tenth of a millisecond, so
 * 512 at once would stop the clock of every stream that runs for 50 ms.
 */
export class TurnLimiter {
  readonly #perTurn: number;
  #nThisTurn = 0;
  #nextTurn: Promise<void> | undefined;

  constructor(perTurn: number) {
    this.#perTurn = perTurn;
  }

  async enter(): Promise<void> {
    while (this.#nThisTurn >= this.#perTurn) await this.#turn();
    if (this.#nThisTurn++ === 0) void this.#turn();
  }

  #turn(): Promise<void> {
    this.#nextTurn ??= new Promise((resolve) => {
      setImmediate(() => {
        this.#nThisTurn = 0;
        this.#nextTurn = undefined;
        resolve();
      });
    });
    return this.#nextTurn;
  }
}
