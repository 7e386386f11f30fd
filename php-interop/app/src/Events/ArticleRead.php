<?php

namespace App\Events;

/** An event that PHP serializes as it is. */
class ArticleRead
{
    public ?string $reader = null;

    public function __construct(public int $article, private float $share) {}
}
