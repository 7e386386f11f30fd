<?php

namespace App\Models;

use Illuminate\Database\Eloquent\Model;

/** A model whose key is text. */
class Document extends Model
{
    public $incrementing = false;

    protected $keyType = 'string';

    protected $guarded = [];
}
