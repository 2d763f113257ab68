// Why there is no answer, and what to do about it.
export class Problem extends Error {
  constructor(readonly status: number, message: string, readonly nextStep: string | null) {
    super(message);
  }
}
