export type CheckStatus = 'ok' | 'warning' | 'failed';

export interface Check {
  name: string;
  status: CheckStatus;
  detail: string;
  /** What to do about it; null when there is nothing to do. */
  advice: string | null;
}

export function ok(name: string, detail: string): Check {
  return { name, status: 'ok', detail, advice: null };
}

export function warning(name: string, detail: string, advice: string): Check {
  return { name, status: 'warning', detail, advice };
}

export function failed(name: string, detail: string, advice: string): Check {
  return { name, status: 'failed', detail, advice };
}
